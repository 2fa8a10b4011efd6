"""From a recipe to objects: the refused combinations, the mechanism, the algorithm, all of a run."""
