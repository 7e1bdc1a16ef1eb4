"""Run folders and recipes that come from other libraries and go to them."""
