"""Helpers that the library, the lab and the command line share; not part of the public interface."""
