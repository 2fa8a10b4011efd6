"""McMahan et al. 2018, Learning differentially private recurrent language models."""
