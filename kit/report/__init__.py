"""What people see: the terminal, tables, the report."""
