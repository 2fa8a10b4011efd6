"""The papers that can be run again."""

from __future__ import annotations

from sottovoce.papers.mcmahan2018.paper import MCMAHAN2018
from sottovoce.papers.popov2018.paper import POPOV2018
from sottovoce.papers.schultz2019.paper import SCHULTZ2019

PAPERS = {paper.name: paper for paper in (MCMAHAN2018, SCHULTZ2019, POPOV2018)}
