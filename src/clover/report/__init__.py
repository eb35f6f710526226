"""How a command tells what it does and what it found: each part is written once, here.

| module | what it is for |
|---|---|
| `provenance` | machine, device, dtype, threads, versions, revision, command, date; `command_line` of options |
| `card` | a panel of facts at the head of a report |
| `table` | rows of text as a terminal table, Markdown or HTML |
| `figure` | how pictures look, colours of the systems, saving |
| `progress` | a bar with the time left; plain lines where there is no terminal |
| `statistics` | ratios with their standard errors |
| `words` | numbers, durations and names of systems for people |
| `output` | the report as a whole: terminal, JSON, picture, HTML page |

A command checks its outputs, works under a `Progress`, and publishes one `Report`:

>>> def run(options):  # doctest: +SKIP
...     check_outputs(json=options.json, picture=options.picture)
...     with Progress() as progress:
...         progress.say("loading the target")
...         target = load(options.target)
...         progress.begin(len(prompts))
...         for prompt in prompts:
...             rows.append(measure(target, prompt))
...             progress.advance()
...     origin = Provenance.here(command_line("work", options), target.device, target.dtype)
...     table = Table("Speed", ("prompt", "tokens/s"), rows)
...     report = Report("Speed of work", origin, [("target", "embedded")], [table], [Picture("Speed", draw)], data)
...     publish(report, json=options.json, picture=options.picture)
"""
