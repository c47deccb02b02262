"""From the record of a sweep to what a person reads: a page, figures, tables, a summary. Nothing here runs a model."""
