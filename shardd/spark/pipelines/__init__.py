"""Ready-made pipelines: `shardd pipeline <name>` (shardd/cli/pipeline.py) calls one function of one module each."""
