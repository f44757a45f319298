"""The study's claims, part by part."""

from normplace.lab.studies.postdeg.claims import recommend, selection, social, topologies

CLAIMS = (*selection.CLAIMS, *topologies.CLAIMS, *recommend.CLAIMS, *social.CLAIMS)
