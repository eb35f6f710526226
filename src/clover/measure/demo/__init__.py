"""`clover demo`: the bench shown live, every draft beside plain decoding; then a table, a picture and a JSON file."""
