"""Models to audit by the thousand: where they come from, and how each is made small enough to run."""
