"""The HTML report: one file that opens offline, drawn with matplotlib and Jinja2."""
