-- Made by s2chat with schema 1.
BEGIN TRANSACTION;
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
    title TEXT NOT NULL DEFAULT '', draft TEXT NOT NULL DEFAULT '', owner TEXT
);
INSERT INTO "conversations" VALUES(1,1764000001.0,1764000099.0,'Name a colour [b].','unsent 猫
line','1:1:gone');
INSERT INTO "conversations" VALUES(2,1764000002.0,1764000098.0,'too long','','1:1:gone');
INSERT INTO "conversations" VALUES(3,1764000003.0,1764000097.0,'','only a draft','1:1:gone');
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversations (id),
    role TEXT NOT NULL, content TEXT NOT NULL, status TEXT NOT NULL, mode TEXT, timings TEXT,
    created REAL NOT NULL, owner TEXT, replaced INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "messages" VALUES(1,1,'user','Name a colour [b].','done',NULL,NULL,1764000001.0,NULL,0);
INSERT INTO "messages" VALUES(2,1,'assistant','Red.

猫 こんにちは','done','ar','{"predicted_n": 3, "predicted_ms": 30.0, "context_n": 40}',1764000002.0,NULL,1);
INSERT INTO "messages" VALUES(3,1,'assistant','Blue.','stopped','s2-exact','{"predicted_n": 2, "end": "stopped"}',1764000003.0,NULL,1);
INSERT INTO "messages" VALUES(4,1,'assistant','Green.','done','ar','{"predicted_n": 2}',1764000004.0,NULL,0);
INSERT INTO "messages" VALUES(5,1,'user','Another one.','done',NULL,NULL,1764000005.0,NULL,0);
INSERT INTO "messages" VALUES(6,1,'assistant','Yellow.','done','ar','{}',1764000006.0,NULL,0);
INSERT INTO "messages" VALUES(7,2,'user','too long','error',NULL,'{}',1764000007.0,NULL,0);
INSERT INTO "messages" VALUES(8,2,'assistant','','error','ar','{"end": "error"}',1764000008.0,NULL,0);
INSERT INTO "messages" VALUES(9,2,'user','short','done',NULL,NULL,1764000009.0,NULL,0);
INSERT INTO "messages" VALUES(10,2,'assistant','half an ans','streaming','ar',NULL,1764000010.0,'1:1:gone',0);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "settings" VALUES('mode','s2-exact');
INSERT INTO "settings" VALUES('theme','nord');
CREATE INDEX messages_of ON messages (conversation, id);
COMMIT;
PRAGMA user_version = 1;
