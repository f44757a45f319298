"""Graph data sets: node labels, molecules, mines on a grid."""
