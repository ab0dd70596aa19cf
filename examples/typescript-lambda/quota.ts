import { Duration, RemovalPolicy } from "aws-cdk-lib";
import { Alarm, ComparisonOperator, type IAlarmAction, Metric, TreatMissingData } from "aws-cdk-lib/aws-cloudwatch";
import { AttributeType, BillingMode, Table, TableEncryption } from "aws-cdk-lib/aws-dynamodb";
import { Effect, type IGrantable, type Grant, PolicyStatement } from "aws-cdk-lib/aws-iam";
import { Construct } from "constructs";

/** What a function that decides needs: no more than single items of the table. */
const ACTIONS = [
  "dynamodb:BatchGetItem",
  "dynamodb:DeleteItem",
  "dynamodb:GetItem",
  "dynamodb:PutItem",
  "dynamodb:UpdateItem",
];

/** Settings of {@link TollgateQuota}. */
export interface TollgateQuotaProps {
  /** The name of the table; without one CloudFormation makes it. */
  readonly tableName?: string;
  /** What happens when an alarm goes off, such as a message to a topic. */
  readonly alarmAction?: IAlarmAction;
  /** What happens to the table with the stack. Retained by default: a quota that is forgotten is exceeded. */
  readonly removalPolicy?: RemovalPolicy;
}

/** The table that processes share their quotas in, and alarms for what keeps it from deciding. */
export class TollgateQuota extends Construct {
  readonly table: Table;
  readonly alarms: Alarm[];

  constructor(scope: Construct, id: string, props: TollgateQuotaProps = {}) {
    super(scope, id);
    this.table = new Table(this, "Table", {
      ...(props.tableName !== undefined && { tableName: props.tableName }),
      partitionKey: { name: "pk", type: AttributeType.STRING },
      billingMode: BillingMode.PAY_PER_REQUEST,
      encryption: TableEncryption.AWS_MANAGED,
      timeToLiveAttribute: "ttl",
      removalPolicy: props.removalPolicy ?? RemovalPolicy.RETAIN,
    });
    const period = Duration.minutes(1);
    const dimensionsMap = { TableName: this.table.tableName };
    const metric = (metricName: string): Metric =>
      new Metric({ namespace: "AWS/DynamoDB", metricName, dimensionsMap, period, statistic: "Sum" });
    const alarm = (name: string, metricName: string, alarmDescription: string): Alarm =>
      new Alarm(this, name, {
        alarmDescription,
        metric: metric(metricName),
        threshold: 0,
        comparisonOperator: ComparisonOperator.GREATER_THAN_THRESHOLD,
        evaluationPeriods: 3,
        datapointsToAlarm: 2,
        treatMissingData: TreatMissingData.NOT_BREACHING,
      });
    this.alarms = [
      alarm("Throttled", "ThrottledRequests", "The table throttles: a subject is hot. Lease its policy, or divide the subject."),
      alarm("Failing", "SystemErrors", "The table fails, and asks with it."),
    ];
    if (props.alarmAction !== undefined) for (const one of this.alarms) one.addAlarmAction(props.alarmAction);
  }

  /** Lets a function decide. */
  grantDecide(grantee: IGrantable): Grant {
    return this.table.grant(grantee, ...ACTIONS);
  }

  /** The statement of {@link grantDecide}, for roles that are made elsewhere. */
  statement(): PolicyStatement {
    return new PolicyStatement({ effect: Effect.ALLOW, actions: ACTIONS, resources: [this.table.tableArn] });
  }
}
