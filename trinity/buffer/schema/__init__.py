"""Public import path of the SQL schema."""
