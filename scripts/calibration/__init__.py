"""Parts of ``scripts/calibrate_compare.py``."""
