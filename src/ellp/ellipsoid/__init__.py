"""Rows -> Ellipsoid."""
