"""What people look at: one self-contained HTML file, a text table, and a live view on 127.0.0.1."""
