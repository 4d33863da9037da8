"""What people read: tables on a terminal and in papers, and self-contained HTML pages with figures and attempts."""
