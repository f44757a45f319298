"""An audit as text and as an HTML page."""
