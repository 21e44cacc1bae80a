"""What people look at: one self-contained HTML file, a text table, and the figures in it."""
