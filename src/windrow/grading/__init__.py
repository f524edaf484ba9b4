"""Scorers: the built-in ones, a user's own, and grading after the commit."""
