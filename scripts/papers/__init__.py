"""The generated parts of the paper pages: tables and pictures from the committed results."""
