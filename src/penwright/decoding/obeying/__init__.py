"""What is asked of a translation: a glossary, spans that stay, a beginning; and the search that obeys."""
