"""The study's claims, part by part."""

from normplace.studies.postdeg.claims import selection, topologies

CLAIMS = (*selection.CLAIMS, *topologies.CLAIMS)
