"""What this machine is and has: one probe per file, each answer a value with its source, or an error."""
