"""Coordinates -> stored bytes, and back."""
