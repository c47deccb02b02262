"""Factors or whole matrices -> stored bytes, and back."""
