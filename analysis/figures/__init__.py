"""What all figures and tables share: style, panels, scales and file formats."""
