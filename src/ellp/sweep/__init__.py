"""Models x methods x budgets x tasks -> a record that survives being killed."""
