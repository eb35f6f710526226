"""How a command tells what it does and what it found: each part is written once, here."""
