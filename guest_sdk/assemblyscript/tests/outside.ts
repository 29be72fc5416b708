// The outside: its input is {"tool": name, "url": URL}; the messages tell what came.

import {
  Arguments, Encoder, HttpRequest, Json, callTool, inputText, listTools, send, waitAll,
} from "symphony-lip";

export function lip_main(): i32 {
  const job = Json.parse(inputText());
  const name = job.at("tool").string();
  const url = job.at("url").string();

  const tools = listTools();
  for (let i = 0; i < tools.length; i++) {
    if (tools[i].name == name) {
      const properties = tools[i].schema.at("properties");
      send(`listed ${tools[i].description} ${properties.keys.join(",")}`);
    }
  }
  const list = new Encoder().array(2).integer(-1).float(0.5).bytes();
  const given = new Arguments().text("text", "é").integer("n", 7).boolean("yes", true);
  const calls = [callTool(name, given.encoded("list", list)), callTool(name), callTool("none.at")];
  waitAll(calls);
  for (let i = 0; i < calls.length; i++) {
    const answer = calls[i].tryAnswer();
    if (answer.ok) send(`tool ${answer.value.ok} ${answer.value.content}`);
    else send(answer.reason);
  }
  const slow = callTool("t.sleep", new Arguments().integer("seconds", 600), 20);
  send(`slow ${slow.tryAnswer().reason}`);

  const request = new HttpRequest(url + "/a").header("x-a", "1").post("body");
  const response = request.send().response();
  send(`http ${response.status} ${response.ok} ${response.text}`);
  send(`kind ${response.headers.get("content-type").split(";")[0]}`);
  const wait = new HttpRequest(url + "/slow");
  wait.timeoutMs = 20;
  send(`late ${wait.send().tryResponse().errno}`);
  send(`refused ${new HttpRequest("http://10.0.0.1/").send().tryResponse().reason}`);
  send(`bad ${new HttpRequest("nothing").send().tryResponse().errno}`);
  return 0;
}
