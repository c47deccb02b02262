"""Ellipsoid, rank -> Factors."""
