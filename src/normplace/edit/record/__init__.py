"""The record of an edit."""
