"""Where a model can be edited, and how: copies, hooks, placed modules and new norms."""
