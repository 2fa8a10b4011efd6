"""What the commands do, as calls: train, resume, evaluate, report."""

from sottovoce.jobs.measuring import evaluate_run, load_run, report_run
from sottovoce.jobs.together import help_out
from sottovoce.jobs.training import Progress, RunResult, resume, train

__all__ = ["Progress", "RunResult", "evaluate_run", "help_out", "load_run", "report_run", "resume", "train"]
