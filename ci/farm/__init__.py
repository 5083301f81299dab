"""The build and test farm of quantfarm: plan, build, presence, run, evidence, page. Never shipped."""
