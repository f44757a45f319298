"""The study's claims, part by part."""

from normplace.studies.postdeg.claims import recommend, selection, social, topologies

CLAIMS = (*selection.CLAIMS, *topologies.CLAIMS, *recommend.CLAIMS, *social.CLAIMS)
