"""What people see: tables of a plan and an inspection, and the progress of a load. Pure text, no torch."""
