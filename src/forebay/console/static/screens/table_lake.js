// The lake of a live table, as a tab of the table.
import { Answer, Card, Empty, apiPath, html, useApi } from "../lib.js";
import { LakeTable } from "./lake.js";

export default function TableLake({ database, table, session }) {
  const answer = useApi(`lake/${apiPath(database, table)}`);
  if (answer.error?.kind === "invalid") return html`<${Card}><${Empty} title="This table has no lake"><span>${answer.error.message}</span><//><//>`;
  return html`<${Answer} of=${answer}>${() => html`<${LakeTable} ...${{ database, table, session }} />`}<//>`;
}
