"""Rules for the principals of certificates, and subjects that they are applied to."""

from __future__ import annotations

from typing import Final

SUBJECTS: Final = (
    "CN=app",
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke\\, the 2nd,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
    "CN=duke,OU=JavaSoft,O=Sun Microsystems",
    "UID=7,CN=a b,DC=example,DC=com",
    "OU=Admin,CN=Éva",
    "CN=line\nbreak,O=x",
    "",
)
RULES: Final = (
    "DEFAULT",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT",
    " RULE:CN=(.*)/$1/U ,RULE:.*CN=(\\w+).*/$1@$0/, RULE:UID=(\\d+),.*/user-$1/",
    "RULE:(.*)/x$1/",
    "RULE:CN=(.*?),?/$1/,RULE:.*/none/",
    "RULE:(?:CN|OU)=(([^,\\\\]|\\\\.)+)(,.*)?/$1$12$3/",
    "RULE:CN=([^,]*),(?!OU).*/$1\\$1/",
    "RULE:.*O=([A-Z][a-z]{1,3})\\s?.*/\\/$1\\/$10/L,DEFAULT",
    "RULE:^(CN)=(.){3,}$/$2$1/,RULE:.*/fixed, with a comma/",
)
