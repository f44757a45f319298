"""The exact empirical tangent kernel of any module."""
