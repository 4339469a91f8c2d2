"""Prints the table of cost rules as Markdown."""

from fathom_trace.cost_rules import to_markdown

print(to_markdown(), end="")
