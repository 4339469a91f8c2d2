"""The Fathom paper's analyses over captured traces, as numbers, figures and one page."""
