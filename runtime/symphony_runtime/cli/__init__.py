"""The command line: `symphony serve`, `run`, `upload`, `admin`, `kv`, `top`, `doctor`, ...

`main` has the commands. Each talks to a server over HTTP (`symphony.AsyncClient`), except
`serve`, which starts one, and `new` and `build`, which make guest projects from `templates/`.
"""
