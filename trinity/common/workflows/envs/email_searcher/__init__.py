"""Questions about the mails of an inbox, answered by searching them."""
