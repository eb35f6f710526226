"""How a command tells what it does and what it found: each part is written once, here.

| module | what it is for |
|---|---|
| `provenance` | machine, device, dtype, threads, versions, revision, command, date |
| `table` | rows of text as a terminal table or Markdown; facts as a card |
| `figure` | how pictures look, colours of the systems, saving |
| `progress` | a bar with the time left; plain lines where there is no terminal |
| `statistics` | ratios with their standard errors |
| `words` | numbers, durations and names of systems for people |
| `output` | the report as a whole: terminal, JSON, picture, HTML page |
"""
