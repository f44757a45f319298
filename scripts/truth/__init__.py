"""Models outside the test suite, with the slot of each of their norms as read from their source code."""
