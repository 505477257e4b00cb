"""What an accelerator does in a few minutes: rows that a person reads and a page is made from."""
