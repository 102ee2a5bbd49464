"""`shardd bench`: what a server does under load, measured as iggy-bench measures it (docs/bench.md).

`kinds` says who does what, `plan` which actor gets how much, `prepare` makes streams, `engine` runs processes of the
native load engine, `metrics` makes figures of what they recorded, `report` the files.
"""
