"""Language models: loaded, packed, read and updated."""
